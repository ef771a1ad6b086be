"""Sites: suspended, flushed, rerouted, by what the processes of a queue share."""

"""RabbitMQ, through pika. pika's errors die here."""

"""Commands that run until they are stopped: worker, intake, mta, operator."""

"""RabbitMQ, through pika, whose errors this folder translates."""

"""S3 and compatible stores, through boto3 and obstore, whose errors this folder translates."""

"""S3 and what speaks it, through boto3. Its errors die here."""

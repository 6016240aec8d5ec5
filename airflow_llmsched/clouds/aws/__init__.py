"""Renting on AWS: EC2 fleets of type ``instant``. Only ``client`` imports boto3, and only when it is used."""

"""What is fitted to measurements: adapters to numerical libraries, which no other package needs."""

"""Google Cloud: machines by bulk insert, queues by resize requests and queued resources."""

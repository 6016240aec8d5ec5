"""What runs gangs. Adapters load by name through ``registry``; import from the modules, not from here."""

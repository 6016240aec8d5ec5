"""A plan written out as the settings of the tools that people train with. Pure: text from values, no files."""

"""Binary and decimal multiples. Values in code are plain numbers with a unit suffix; these convert at the edge."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

KB = 1000
MB = 1000**2
GB = 1000**3
TB = 1000**4

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86400.0

TERA = 1e12

KWH_J = 3.6e6

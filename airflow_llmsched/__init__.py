"""Pretrain language models from Apache Airflow: plan, place, launch, watch, recover, report.

Import nothing here: every rank of every gang imports this package to reach ``airflow_llmsched.agent``.
"""

__version__ = "0.1.0"

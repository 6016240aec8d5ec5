"""Airflow objects: thin, without decisions of their own. The only package that imports Airflow."""

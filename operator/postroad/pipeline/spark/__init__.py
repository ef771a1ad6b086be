"""The pipeline's decisions as Spark columns and tables: the only home of PySpark."""

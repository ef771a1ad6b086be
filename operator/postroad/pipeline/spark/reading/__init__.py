"""Rows, marks and objects of a queue as Spark reads them."""

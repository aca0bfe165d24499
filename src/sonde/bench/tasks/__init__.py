"""Families of benchmark questions, made from a seed."""

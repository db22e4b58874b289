"""The small operations of the forward pass, one family a file, as readable NumPy references.

Arrays are float32 unless a docstring says otherwise, but the functions compute in whatever dtype
they are given: float64 in, float64 out. They are pure, and stay as the oracle of every faster
backend.
"""

"""One published way to bend a law with a second one a file: what it is (CARD) and how the law is
put together (build).
"""

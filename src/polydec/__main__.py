"""python -m polydec"""
from polydec.cli.main import main

main()

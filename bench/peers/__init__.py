"""One short module for each library that takes part; `base.py` says what each must offer."""

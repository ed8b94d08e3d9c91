"""Cards of methods, what a method is given (its kit), and how methods are found."""

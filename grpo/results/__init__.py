"""The results of evaluations: how they compare, and the table that shows them."""

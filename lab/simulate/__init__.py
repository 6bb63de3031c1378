"""The real gateway, router and scheduler in virtual time, over models of what a GPU takes."""

"""The laboratory's tests run under the rules of the product's: threads, examples, workers."""

pytest_plugins = ("tests.conftest",)

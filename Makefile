.PHONY: lint
lint:
	ruff check .

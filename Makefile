test:
	cargo test --workspace

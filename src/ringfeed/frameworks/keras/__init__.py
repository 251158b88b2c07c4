"""`Loader.to_keras()`: fit, evaluate and predict on TensorFlow, JAX and torch."""

"""tf.data over a loader: by an op that waits in C, or in Python where that op cannot be loaded."""

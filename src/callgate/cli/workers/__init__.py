"""Remote workers: being one (`worker`), and who may be one (`workers`)."""

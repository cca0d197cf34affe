"""CDI files: model, writer, driver files, claims."""

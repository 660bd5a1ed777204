"""Line files, batches, the sample corpus, vocabularies."""

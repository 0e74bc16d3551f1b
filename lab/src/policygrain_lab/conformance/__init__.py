"""Running trainers and endpoints compared with presets, by the steps that they take."""

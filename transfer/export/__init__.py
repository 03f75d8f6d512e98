"""Fine-tuned detectors for use elsewhere: ONNX, torch.export, torchvision."""

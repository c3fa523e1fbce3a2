"""PyTorch frontend: a torch.export program is read, made functional and converted to Relax; see convert.py for the ops."""

# NVIDIA's PyTorch container brings a torch built for its CUDA libraries; this project needs torch 2.11 or newer.
# Older releases of it also brought apex. Nothing here needs apex: autocast and fused AdamW are torch's own. Where an image
# has it, --optimizer fused_adam and fused_lamb are apex's; launch.sh 'python -c "import apex"' tells.
ARG FROM_IMAGE_NAME=nvcr.io/nvidia/pytorch:26.03-py3
FROM ${FROM_IMAGE_NAME}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /workspace/bart

# The image's torch, and the numpy it was built with, stay: they are left out of the list, and pip is held to the
# installed versions where another package asks for them. The image's own PIP_CONSTRAINT, which pins everything it
# carries, would refuse our pins.
COPY requirements.txt ./
RUN python -m pip list --format=freeze | grep -E '^(torch|numpy)==' > kept.txt \
    && grep -vE '^(torch|numpy)==' requirements.txt > wanted.txt \
    && PIP_CONSTRAINT='' python -m pip install --no-cache-dir -r wanted.txt -c kept.txt \
    && rm kept.txt wanted.txt

COPY . .

# NVIDIA's PyTorch container brings a torch built for its CUDA libraries; this project needs torch 2.11 or newer.
# Nothing here needs apex, which older releases of the container also bring: autocast and fused AdamW are torch's own. If an
# image has apex, --optimizer fused_adam and fused_lamb use it; launch.sh 'python -c "import apex"' shows whether it does.
ARG FROM_IMAGE_NAME=nvcr.io/nvidia/pytorch:26.03-py3
FROM ${FROM_IMAGE_NAME}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /workspace/bart

# The packages go to an environment that also sees the image's. So none of those is changed or removed, which fails for what
# Debian installed. The image's torch, and the numpy that it was built with, must be used. So both are left out of the list,
# and pip is held to the installed versions if another package asks for them. PIP_CONSTRAINT is emptied, because the image's
# own pins everything that it carries and would refuse our pins.
RUN python -m venv --without-pip --system-site-packages /opt/bart
ENV PATH=/opt/bart/bin:$PATH BART_IMAGE=1
COPY requirements.txt ./
RUN python -m pip list --format=freeze | grep -E '^(torch|numpy)==' > kept.txt \
    && grep -vE '^(torch|numpy)==' requirements.txt > wanted.txt \
    && PIP_CONSTRAINT='' python -m pip install --no-cache-dir -r wanted.txt -c kept.txt \
    && rm kept.txt wanted.txt

COPY . .

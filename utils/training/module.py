"""The Lightning module: what one training step and one validation do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from bart.modeling.modeling_bart import IGNORE_INDEX, BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.arguments import METRICS, TrainArguments
from utils.evaluation.rouge import rouge_per_example
from utils.evaluation.scoring import generation_options
from utils.memory import FittingSize
from utils.training.loss import smoothed_loss, teacher_forced
from utils.training.optim import build_optimizer, build_schedule
from utils.training.precision import MasterWeights

ROUGE_METRICS = METRICS[1:]  # all but the loss


class SummarizationModule(pl.LightningModule):
    """Fine-tunes a BART on pairs of articles and summaries.

    The loss of an optimizer step is the mean over all target tokens of its micro-batches on all processes. Each
    backward pass adds a sum over tokens; the gradients are divided by the number of tokens just before the step.

    Args:
        references: validation targets, by their line; the texts that ROUGE compares with.
        total_steps: optimizer steps of the whole run, for the schedule.
        identity: what a run that goes on from a checkpoint must share with this one; checkpoints carry it.
    """

    def __init__(
        self,
        model: BartForConditionalGeneration,
        tokenizer: BartTokenizer,
        args: TrainArguments,
        references: list[str],
        total_steps: int,
        identity: dict[str, Any],
    ) -> None:
        super().__init__()
        self.model = model.train()  # from_pretrained gives eval mode, and Lightning keeps what it finds
        self.tokenizer = tokenizer
        self.args = args
        self.references = references
        self.total_steps = total_steps
        self.identity = identity
        self.random_states: list[dict[str, Tensor]] = []  # of all processes, where a checkpoint gave them
        # Sums over tokens would overflow fp16 gradients; this constant keeps them near the size of a mean's.
        longest_examples = args.train_batch_size  # that a micro-batch holds
        if args.max_tokens_per_batch is not None:
            longest_examples = args.max_tokens_per_batch // (args.max_source_length + args.max_target_length)
        self.reference_tokens = float(longest_examples * args.max_target_length)
        self.eval_batch_size = FittingSize(args.eval_batch_size, "--eval_batch_size")
        if args.freeze_embeds:
            for table in (model.model.shared, model.model.encoder.embed_positions, model.model.decoder.embed_positions):
                table.requires_grad_(False)
        if args.freeze_encoder:
            model.model.encoder.requires_grad_(False)
            # The table is the decoder's and the head's as well; --freeze_embeds freezes it.
            model.model.shared.requires_grad_(not args.freeze_embeds)
        model.set_activation_checkpointing(args.activation_checkpointing)

    def configure_model(self) -> None:
        """Shard the network over all processes, layer by layer, for --strategy fsdp (Zhao et al., 2023)."""
        network = self.model.model
        if self.args.strategy != "fsdp" or self.trainer.world_size == 1 or isinstance(self.model, FSDPModule):
            return
        for layer in (*network.encoder.layers, *network.decoder.layers):
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def _keep_whole(self, whole: bool) -> None:
        """Let every process hold all weights, so that it need not wait for others, or its share again."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.set_reshard_after_forward(not whole, recurse=False)
                if whole:
                    module.unshard()
                else:
                    module.reshard()

    def configure_optimizers(self) -> dict[str, Any]:
        args = self.args
        optimizer = build_optimizer(self.model, args)
        scheduler = build_schedule(args.lr_scheduler, optimizer, args.warmup_steps, self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step", "name": "lr"}}

    def on_fit_start(self) -> None:
        # Sums are no buffers: those turn into halves with the model where it trains in half precision.
        self.step_tokens = torch.zeros((), dtype=torch.long, device=self.device)
        self.step_loss = torch.zeros((), dtype=torch.float32, device=self.device)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        output = teacher_forced(self.model, batch)
        loss, tokens = smoothed_loss(output.logits, batch["labels"], self.args.label_smoothing)
        self.step_loss += loss.detach()
        self.step_tokens += tokens
        return loss / self.reference_tokens

    def on_after_backward(self) -> None:
        optimizer = self.trainer.optimizers[0]
        if isinstance(optimizer, MasterWeights):
            optimizer.collect_gradients()

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Turn gradients of a sum over tokens into those of the step's mean, before clipping."""
        totals = torch.stack([self.step_tokens.double(), self.step_loss.double()])
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(totals)  # the strategy's reduce would also wait at a barrier
        tokens, loss = totals
        # Lightning divided the loss by the number of micro-batches, and DDP averages over processes.
        factor = self.reference_tokens * self.trainer.accumulate_grad_batches * self.trainer.world_size / tokens
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        gradients = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
        if gradients[0].dtype.itemsize == 2:  # O3: the factor itself must not be rounded to so few bits
            for gradient in gradients:
                gradient.copy_(gradient.float() * factor.float())
        else:
            torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
        # Callbacks log these at every interval: to log at each step would wait for a GPU each time.
        self.train_loss = (loss / tokens).float()
        self.lr = optimizer.param_groups[0]["lr"]
        self.step_tokens.zero_()
        self.step_loss.zero_()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by norm, as Lightning does, and keep the norm: that of the step's mean, unscaled, of all parameters."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if gradient_clip_val:
            norm = torch.nn.utils.clip_grad_norm_(parameters, gradient_clip_val)
        else:
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self.grad_norm = (norm.full_tensor() if isinstance(norm, DTensor) else norm).float()

    def on_validation_epoch_start(self) -> None:
        self._keep_whole(True)  # processes have unequal numbers of batches
        # Loss, tokens, each kind of ROUGE, examples.
        self.val_sums = torch.zeros(3 + len(ROUGE_METRICS), dtype=torch.float64, device=self.device)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        def validate(rows: list[int]) -> None:
            self._validate({name: tensor[rows] for name, tensor in batch.items()})

        self.eval_batch_size.run_in_parts(range(len(batch["index"])), validate)

    def _validate(self, batch: dict[str, Tensor]) -> None:
        """Add a batch's loss and scores to the sums."""
        labels = batch["labels"]
        output = teacher_forced(self.model, batch)
        loss, tokens = smoothed_loss(output.logits, labels, self.args.label_smoothing)
        if self.args.eval_beams == 0:
            # Teacher forcing: at every position the likeliest token after the reference's own prefix.
            summary_ids = output.logits.argmax(-1).where(labels != IGNORE_INDEX, self.tokenizer.pad_token_id)
        else:
            summary_ids = self.model.generate(
                batch["input_ids"],
                batch["attention_mask"],
                encoder_outputs=output.encoder_last_hidden_state,
                **generation_options(self.args.eval_beams, self.args.eval_max_gen_length),
            )
        predictions = self.tokenizer.batch_decode(summary_ids, skip_special_tokens=True)
        scores = rouge_per_example(predictions, [self.references[i] for i in batch["index"].tolist()])
        sums = [scores[name].sum() for name in ROUGE_METRICS]
        self.val_sums[:2] += torch.stack([loss.double(), tokens.double()])
        self.val_sums[2:] += self.val_sums.new_tensor([*sums, len(predictions)])

    def on_validation_epoch_end(self) -> None:
        self._keep_whole(False)
        totals = self.val_sums
        if self.trainer.world_size > 1:
            totals = self.trainer.strategy.reduce(totals, reduce_op="sum")
        loss, tokens, *sums, examples = totals.tolist()
        metrics = {"val_loss": loss / tokens}
        metrics |= {f"val_{name}": value / examples for name, value in zip(ROUGE_METRICS, sums, strict=True)}
        self.log_dict(metrics, prog_bar=True, rank_zero_only=False)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Let a checkpoint carry all that evaluation needs."""
        checkpoint["config"] = self.model.config.to_dict()
        checkpoint["generation_config"] = self.model.generation_config.to_dict()
        checkpoint["tokenizer_json"] = self.tokenizer.to_json()
        states = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
        checkpoint["random_states"] = [states]  # of all processes
        if self.trainer.world_size > 1:
            checkpoint["random_states"] = [{}] * self.trainer.world_size
            dist.all_gather_object(checkpoint["random_states"], states)
        checkpoint["identity"] = self.identity

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.random_states = checkpoint["random_states"]

    def on_train_start(self) -> None:
        """Let each process drop out other units; after an interruption, go on where that left the random state."""
        rank = self.trainer.global_rank
        if self.random_states:
            torch.set_rng_state(self.random_states[rank]["cpu"].cpu())
            if "cuda" in self.random_states[rank] and torch.cuda.is_initialized():
                torch.cuda.set_rng_state(self.random_states[rank]["cuda"].cpu())
        elif rank > 0:
            torch.manual_seed(int(np.random.SeedSequence((self.args.seed, rank)).generate_state(1)[0]))

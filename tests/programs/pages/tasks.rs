//! Tasks that newcomers tried from the pages alone, and what the page must answer. Each was followed word by word in an empty folder; this holds
//! the answers in place. The programs of these pages are doc tests or examples.

use super::page::read;

/// The task, the page that answers it, and what stands there.
const TASKS: [(&str, &str, &[&str]); 17] = [
    (
        "my loop dies from CUDA_ERROR_OUT_OF_MEMORY",
        "docs/how-to/cuda-out-of-memory.md",
        &[
            "CUDA_ERROR_OUT_OF_MEMORY",
            "```diff",
            "AdaptiveTrainer",
            "trainer.step",
        ],
    ),
    (
        "use no more than 8 GB",
        "docs/how-to/memory-growth-and-limits.md",
        &[
            ".limit(",
            "set_limit",
            "Growth::OnDemand",
            "TrackingAllocator",
        ],
    ),
    (
        "which layer takes the memory",
        "docs/how-to/which-layer.md",
        &["LayerMemory", "flame graph", "`layers`"],
    ),
    (
        "see what memory did over time",
        "docs/how-to/watch-a-run.md",
        &["Timeline", "save_page", "--report"],
    ),
    (
        "test my code against out-of-memory",
        "docs/how-to/test-out-of-memory.md",
        &["#[test]", "Faults", "`testing`"],
    ),
    (
        "contribute a change",
        "CONTRIBUTING.md",
        &[
            "cargo test",
            "bash .ci/run",
            "How a step goes",
            "policy",
            "finding",
            "optimizer",
        ],
    ),
    (
        "train under Slurm, requeued before the time is up",
        "docs/how-to/several-gpus-and-slurm.md",
        &[
            "#SBATCH",
            "--requeue",
            "scontrol requeue",
            "exit_status()",
            "--resume",
        ],
    ),
    (
        "write a batch policy",
        "docs/how-to/batch-policy.md",
        &["impl BatchPolicy for", "fn failed", "Neighbour"],
    ),
    (
        "move from TensorFlow",
        "docs/how-to/from-tensorflow.md",
        &[
            "set_memory_growth",
            "set_virtual_device_configuration",
            "ResourceExhaustedError",
            "tf.data",
            "MirroredStrategy",
            "ROCm",
        ],
    ),
    (
        "fine-tune Qwen3 on chat data",
        "docs/how-to/fine-tune.md",
        &["Qwen3", "prompt", "completion", "chat"],
    ),
    (
        "train on a folder of images",
        "docs/how-to/image-folder.md",
        &[
            "ImageFolder",
            "u8",
            "to_dtype",
            "validation",
            "pretrained",
            "saved",
        ],
    ),
    (
        "does it run on my RTX 4090",
        "README.md",
        &["RTX 4090", "8.9", "untested", "CUDA toolkit", "driver"],
    ),
    (
        "accumulate gradients when the last batch is smaller",
        "docs/how-to/gradient-accumulation.md",
        &[
            "AccumulatingTrainer",
            "GradientAccumulator",
            "tail",
            "trainer.update()",
        ],
    ),
    (
        "BERT with pretrained weights does not learn",
        "docs/how-to/candle-transformers.md",
        &[
            "with_tracing",
            "model.safetensors",
            "trainable-copy.sh",
            "Bert",
        ],
    ),
    (
        "train on spot instances",
        "docs/how-to/resume-after-preemption.md",
        &["spot", "SIGTERM", "checkpoints.resume", "storage"],
    ),
    (
        "the driver is too old",
        "docs/how-to/check-a-machine.md",
        &["headroom doctor", "too old", "HR-308"],
    ),
    (
        "train in mixed precision",
        "docs/how-to/mixed-precision.md",
        &["autocast", "bf16", "master_weights", "LossScale", "NaN"],
    ),
];

#[test]
fn the_pages_answer_what_newcomers_asked() {
    let mut wrong = Vec::new();
    let mut right = 0;
    for (task, page, answers) in TASKS {
        let text = read(page);
        let missing: Vec<_> = answers
            .iter()
            .filter(|answer| !text.contains(**answer))
            .collect();
        match missing.is_empty() {
            true => right += 1,
            false => wrong.push(format!("{task}: {page} lacks {missing:?}")),
        }
    }
    println!("figure: docs/tasks_right = {right} of {}", TASKS.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

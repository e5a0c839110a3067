//! Every constant of the model, with its source. "Assumed" marks those without one.

/// Parameters of the model: 1.3 billion, about the largest whose state a GPU of 80 GB holds whole beside its activations. Assumed.
pub const PARAMETERS: f64 = 1.3e9;
/// Bytes of the gradients, which travel as f32.
pub const GRADIENT_BYTES: f64 = 4. * PARAMETERS;
/// Bytes of a checkpoint: parameters and AdamW's two moments, f32.
pub const CHECKPOINT_BYTES: f64 = 12. * PARAMETERS;

/// Samples of 2,048 tokens in a micro-batch, and micro-batches in a rank's share of an update. Assumed.
pub const SAMPLES: f64 = 4.;
pub const MICRO_BATCHES: u32 = 16;
/// Operations for a parameter and token: 2 forward, 4 backward (Kaplan et al., Scaling Laws for Neural Language Models, 2020).
const OPERATIONS: f64 = 6.;
/// Operations per second of a GPU: 40 % of the 989 TFLOPS that NVIDIA's data sheet of the H100 SXM gives for dense bf16. The share is
/// within the 38 to 43 % of "The Llama 3 Herd of Models" (2024), table 4.
const SPEED: f64 = 0.4 * 989e12;
/// Seconds of a micro-batch in proportion to its samples, and those that it takes at any size, 5 % of a whole one. Assumed.
pub const WORK: f64 = OPERATIONS * PARAMETERS * SAMPLES * 2048. / SPEED;
pub const FIXED: f64 = 0.05 * WORK;

/// The standard deviation of a micro-batch's time, as a share of it. Assumed.
pub const NOISE: f64 = 0.01;
/// The share of a rank's updates that something delays, and the mean delay, exponentially distributed, as a share of an update. Assumed.
pub const STRAGGLES: f64 = 1e-3;
pub const STRAGGLE: f64 = 0.02;

/// Seconds to synchronize, drain errors and trim after an exhaustion. Assumed: `gpu/recovery_milliseconds` has not been measured yet.
pub const CLEANUP: f64 = 0.05;
/// Updates until a size that was halved is back: `adaptation/ours_worst_regrow_steps` of docs/reference/figures.md.
pub const REGROW: u32 = 6;

/// GPUs in a node, as in NVIDIA's DGX H100.
pub const NODE: usize = 8;
/// Bytes per second of a GPU's NVLinks in one direction (NVIDIA's data sheet of the H100: 900 GB/s in both), and of a node's 8 network
/// cards of 400 Gbit/s ("The Llama 3 Herd of Models", section 3.3.1). Collectives reach 80 % of them. Assumed.
pub const INSIDE: f64 = 0.8 * 450e9;
pub const BETWEEN: f64 = 0.8 * 8. * 50e9;
/// Seconds of a call, and of a hop of a ring inside and between nodes (NVIDIA/nccl at 01afd20, src/graph/tuning.cc: `baseLat` and `hwLat`
/// of the ring with the simple protocol).
pub const CALL: f64 = 8.4e-6;
pub const HOP_INSIDE: f64 = 3.4e-6;
pub const HOP_BETWEEN: f64 = 9.6e-6;
/// Bytes that one call of the NCCL engine moves: all.
pub const BUCKET: f64 = GRADIENT_BYTES;

/// The most branches of a rank in the tree of messages: src/distributed/control/tree.rs.
pub const FAN_OUT: usize = 16;
/// Bytes of a message before an update that all ranks say alike if they agree, for a model of 300 parameters, with 40 that frame it; bytes that it
/// has more for each parameter; and for each rank the rest of its message, with its length. A test of src/train/ranks/status.rs counts them.
pub const ALIKE: f64 = 79. + 40. + 5. * 9.;
pub const PARAMETER_BITS: f64 = 9. / 64.;
pub const OWN: f64 = 37. + 3.;
/// Seconds of rank 0 for a message and its answer, and bytes per second of answers. Measured on 22 November 2026 on 2 cores of an EPYC
/// over the loopback interface: rounds of a star of threads took 10.6, 16.7, 28.0 and 32.3 µs a rank with 16, 64, 256 and 512 ranks, the
/// other ranks' share of the cores included.
pub const ANSWER: f64 = 10e-6;
pub const ANSWERS: f64 = 1.5e9;
/// Seconds of a message's way between nodes. Assumed: TCP in a data center.
pub const WAY: f64 = 50e-6;

/// Hardware failures in a rank's hour: 419 unexpected interruptions of 16,384 GPUs in 54 days ("The Llama 3 Herd of Models", table 5).
pub const FAILURES: f64 = 419. / (54. * 24. * 16_384.);
/// Seconds from a hardware failure until the job trains again: another node, start, load. Assumed.
pub const REPLACED: f64 = 300.;
/// Seconds from an exhaustion that ends the job until it trains again on the same nodes. Assumed, and favourable to restarts.
pub const RESTARTED: f64 = 60.;
/// Seconds that training waits for a checkpoint, at the 50 GB/s of rank 0's PCIe 5, and until it is on the disk, at 2 GB/s. Assumed. The
/// rest of the write is in the background (`checkpoint/stall_percent`).
pub const STALL: f64 = CHECKPOINT_BYTES / 50e9;
pub const WRITE: f64 = CHECKPOINT_BYTES / 2e9;

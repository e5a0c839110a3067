//! One file for each promise of docs/reference/promises.md. Four of them measure host memory and are compiled into `host` (tests/host/main.rs);
//! `no_hidden_synchronization` needs a GPU or the simulated driver and is compiled into `cuda` (tests/cuda/main.rs), `ranks_agree` needs MPI and
//! is compiled into `ranks` (tests/ranks/main.rs).

mod atomic_step;
mod each_sample_once;
mod equality;
mod exact_resume;
mod gradients_arrive;
mod it_ends;
mod jobs;
mod no_panic;
mod only_exhaustion_is_retried;
mod settings;
#[path = "../support/mod.rs"]
mod support;

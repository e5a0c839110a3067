//! Several ranks under `mpirun`, with the real MPI library: each test starts itself once for each rank.

mod equality;
mod exhaustion;
mod launch;
mod model;
#[path = "../promises/ranks_agree.rs"]
mod ranks_agree;
mod sharded;
mod shares;
mod tensors;
mod trouble;

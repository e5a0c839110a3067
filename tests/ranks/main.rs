//! Several ranks under `mpirun`, with the real MPI library: each test starts itself once for each rank.

mod cases;
mod checkpoint;
mod death;
mod equality;
mod every_point;
mod exhaustion;
mod job;
mod kills;
mod launch;
mod model;
mod parts;
#[path = "../support/points.rs"]
mod points;
#[path = "../promises/ranks_agree.rs"]
mod ranks_agree;
mod run;
mod sharded;
mod shares;
mod signals;
mod silent;
mod sizes;
mod tensors;
mod tree;
mod trouble;
mod watching;

//! Seven ranks of MPI in a tree of three levels.

use candle_core::{Device, Tensor};
use candle_headroom::distributed::Group;
use candle_headroom::testing::fan_out;

use crate::launch::{is_rank, mpirun, text};

#[test]
fn messages_and_sums_of_seven_ranks() {
    if !is_rank() {
        let output = mpirun(7, &[]);
        return assert!(output.status.success(), "{}", text(&output));
    }
    let group = fan_out(Group::builder(), 2).open().expect("a group");
    let own = format!("rank {}", group.rank());
    let all = group.gather(own.as_bytes()).expect("all ranks'");
    let expected = (0..7).map(|rank| format!("rank {rank}").into_bytes());
    assert_eq!(all, expected.collect::<Vec<_>>());
    let own = Tensor::new(&[group.rank() as f32], &Device::Cpu).expect("a tensor");
    let sum = group.sum(&own).expect("a sum");
    assert_eq!(sum.to_vec1::<f32>().expect("values"), [21.]);
}

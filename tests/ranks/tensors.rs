//! Sums and copies of tensors that users ask for.

use std::thread::{self, sleep};
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::distributed::{Group, Operation};
use candle_headroom::testing::{collectives, watch};
use candle_headroom::{AdaptiveTrainer, Error, Sgd, process_batches};

use crate::launch::{is_rank, mpirun, text, together};
use crate::model::Model;

#[test]
fn sums_of_all_shapes_and_types() {
    together(3, |group| {
        let rank = group.rank() as f64;
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            for dims in [
                vec![],
                vec![1],
                vec![7],
                vec![0],
                vec![3, 5],
                vec![2, 3, 700],
            ] {
                let tensor = Tensor::full(rank as f32 + 1., dims.as_slice(), &Device::Cpu)
                    .expect("a tensor");
                let tensor = tensor.to_dtype(dtype).expect("a tensor");
                let sum = group.sum(&tensor).expect("a sum");
                assert_eq!((sum.dims(), sum.dtype()), (dims.as_slice(), dtype));
                let sum = sum
                    .to_dtype(DType::F64)
                    .and_then(|sum| sum.flatten_all())
                    .expect("a sum");
                assert!(
                    sum.to_vec1::<f64>()
                        .expect("a sum")
                        .iter()
                        .all(|value| *value == 6.)
                );
            }
        }
        // A transposed view, whose elements do not lie in order.
        let tensor = Tensor::arange(0f32, 6., &Device::Cpu)
            .and_then(|it| it.reshape((2, 3))?.t())
            .expect("a view");
        let sum = group
            .sum(&tensor)
            .and_then(|sum| Ok(sum.to_vec2::<f32>()?))
            .expect("a sum");
        assert_eq!(sum, [[0., 9.], [3., 12.], [6., 15.]]);
    });
}

/// On some ranks or on all, before anything is exchanged.
#[test]
fn sums_of_other_types_are_refused_and_the_group_goes_on() {
    together(3, |group| {
        for wrong in [vec![0, 1, 2], vec![1]] {
            for dtype in [DType::U32, DType::U8, DType::I64] {
                let dtype = match wrong.contains(&group.rank()) {
                    true => dtype,
                    false => DType::F32,
                };
                let tensor = Tensor::ones(3, dtype, &Device::Cpu).expect("a tensor");
                let error = group.sum(&tensor).expect_err("no such sum").to_string();
                assert!(
                    error.contains("convert the tensor to F32 or F64"),
                    "{error}"
                );
            }
            let tensor = Tensor::ones(3, DType::F32, &Device::Cpu).expect("a tensor");
            let sum = group.sum(&tensor).expect("the group goes on");
            assert_eq!(sum.to_vec1::<f32>().expect("a sum"), [3.; 3]);
        }
    });
}

#[test]
fn copies_from_any_rank_and_refuses_what_differs() {
    together(3, |group| {
        for from in 0..3 {
            let var = Var::from_tensor(
                &Tensor::full(group.rank() as u32, (4, 3), &Device::Cpu).expect("a tensor"),
            );
            let var = var.expect("a variable");
            group.broadcast(&var, from).expect("a copy");
            let values = var
                .flatten_all()
                .and_then(|it| it.to_vec1::<u32>())
                .expect("values");
            assert_eq!(values, [from as u32; 12]);
        }
        let tensor =
            Tensor::zeros(3 + group.rank() / 2, DType::F32, &Device::Cpu).expect("a tensor");
        let error = group.sum(&tensor).expect_err("other shapes");
        assert!(error.to_string().contains("rank 2 has [4] F32"), "{error}");
        assert!(error.is_group() && error.to_string().starts_with("the ranks differ in "));
        let same = tensor.narrow(0, 0, 3).expect("a part");
        assert!(group.broadcast(&same, 3).is_err());
        let error = group.broadcast(&same, group.rank()).expect_err("others");
        let text = error.to_string();
        assert!(text.contains("rank 1 has [3] F32 from rank 1"), "{text}");
        // What one rank cannot do fails on all, in step.
        let wrong = if group.rank() == 1 { 3 } else { 0 };
        let error = group.broadcast(&same, wrong).expect_err("no rank 3");
        one_failed(group, &error, "there is no rank 3 to copy from");
        let rows = Tensor::zeros((2, 2), DType::F32, &Device::Cpu).expect("a tensor");
        let columns = rows.t().expect("a view");
        let into = if group.rank() == 1 { &columns } else { &rows };
        let error = group.broadcast(into, 0).expect_err("not contiguous");
        one_failed(group, &error, "has to be contiguous");
        let one = Tensor::ones(5, DType::F32, &Device::Cpu).expect("a tensor");
        let sum = group
            .sum(&one)
            .and_then(|it| Ok(it.to_vec1::<f32>()?))
            .expect("the group goes on");
        assert_eq!(sum, [3.; 5]);
    });
}

/// Rank 1 has its own error, and the others that of rank 1.
fn one_failed(group: &Group, error: &Error, reason: &str) {
    let text = error.to_string();
    assert!(text.contains(reason), "{text}");
    let is_told = text.starts_with("rank 1 failed in `broadcast`: ");
    assert_eq!(is_told, group.rank() != 1, "{text}");
}

/// 4 ranks share 3 samples, so that one of them has none to evaluate.
#[test]
fn a_rank_without_samples_takes_part_in_an_evaluation() {
    together(4, |group| {
        let all = Tensor::arange(1f32, 4., &Device::Cpu).expect("samples");
        let share = group.share(3);
        let own = all.narrow(0, share.start, share.len()).expect("a part");
        let model = Model::new(&[1, 1], DType::F32, 1);
        let sgd = Sgd::builder(&model.varmap).learning_rate(0.1).build();
        let trainer = AdaptiveTrainer::builder(sgd.expect("an optimizer")).group(group);
        let mut trainer = trainer.build().expect("a trainer");
        let evaluated = trainer.evaluate(&own, |x, _| x.sum_all()?.to_scalar::<f32>());
        let evaluated = evaluated.map(|it| it.results);
        assert_eq!(group.collect(evaluated).expect("results"), [1., 2., 3.]);
        let processed = process_batches(&own, 2, |x| x.sum_all()?.to_scalar::<f32>());
        assert_eq!(group.collect(processed).expect("results"), [1., 2., 3.]);
    });
}

/// Rank 1 gives up a sum and writes into its tensor, while rank 3, which was stopped in the sum, has yet to get the result from it.
#[test]
fn what_a_rank_writes_after_an_error_reaches_no_other() {
    if !is_rank() {
        let output = mpirun(4, &["--enable-recovery"]);
        let (printed, all) = (String::from_utf8_lossy(&output.stdout), text(&output));
        let others = printed.matches("a sum or an error").count();
        assert_eq!(
            (others, printed.contains("rank 1 gave up")),
            (3, true),
            "{all}"
        );
        return;
    }
    let group = Group::builder().timeout(Duration::from_secs(3)).open();
    let group = group.expect("a group");
    // Long enough that Open MPI reads it from the sender's memory.
    let tensor = Tensor::ones(1024, DType::F32, &Device::Cpu).expect("a tensor");
    let engine = collectives(&group, &Device::Cpu).expect("an engine");
    let processes = group.gather(&std::process::id().to_le_bytes());
    let process = processes.expect("processes")[3].as_slice().try_into();
    let process = i32::from_le_bytes(process.expect("a number"));
    let until = watch(&group, "a sum");
    match group.rank() {
        0 => drop(thread::spawn(move || {
            for (seconds, signal) in [(1, libc::SIGSTOP), (5, libc::SIGCONT)] {
                sleep(Duration::from_secs(seconds));
                // SAFETY: the call takes two numbers.
                unsafe { libc::kill(process, signal) };
            }
        })),
        2 => sleep(Duration::from_secs(2)),
        _ => {}
    }
    let operation = Operation::AllReduce { factor: 1. };
    let engine = engine.expect("several ranks");
    let done = engine.exchange(&tensor, operation, &until);
    if group.rank() == 1 {
        done.expect_err("rank 3 is stopped");
        let other = Tensor::full(-7f32, 1024, &Device::Cpu).expect("a tensor");
        tensor.slice_set(&other, 0, 0).expect("a write");
        println!("rank 1 gave up");
    } else {
        let values = tensor.to_vec1::<f32>().expect("values");
        let is_sum = values.iter().all(|value| *value == 4.);
        assert!(done.is_err() || is_sum, "{:?}", values.first());
        println!("a sum or an error");
    }
    // Until the last has looked.
    sleep(Duration::from_secs(8));
}

//! What can be cut into micro-batches, and what cannot.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::{Extent, Parts, Samples};
use candle_headroom::{Batch, Error};

fn tensor(samples: usize) -> Tensor {
    let values = Tensor::arange(0u32, 2 * samples as u32, &Device::Cpu).unwrap();
    values.reshape((samples, 2)).unwrap()
}

fn first_column(tensor: &Tensor) -> Vec<u32> {
    tensor
        .narrow(1, 0, 1)
        .unwrap()
        .squeeze(1)
        .unwrap()
        .to_vec1()
        .unwrap()
}

const SCALAR: &str =
    "a 0-dimensional tensor has no samples: give it a first dimension with `unsqueeze(0)`";
const NO_PARTS: &str = "the batch has no parts: give at least one tensor";

fn text(error: &Error) -> String {
    assert!(error.is_batch(), "{error}");
    error.to_string()
}

fn batch_error<B: Batch + ?Sized>(batch: &B) -> String {
    text(&batch.extent().unwrap_err())
}

#[test]
fn a_tensors_slice_is_a_view() {
    let x = tensor(6);
    let slice = x.slice(2..5).unwrap();
    assert_eq!(first_column(&slice), [4, 6, 8]);
    // The same storage at another offset: nothing was copied.
    let (storage, layout) = slice.storage_and_layout();
    assert_eq!(layout.start_offset(), 4);
    let candle_core::Storage::Cpu(candle_core::CpuStorage::U32(values)) = &*storage else {
        panic!("a CPU tensor")
    };
    assert_eq!(values.len(), 12);
}

#[test]
fn tuples_vectors_and_maps_are_cut_alike() {
    let (b, c) = (&tensor(4), tensor(4));
    let one = (b,);
    assert_eq!(first_column(&one.slice(1..2).unwrap().0), [2]);
    let two = (b, &c);
    assert_eq!(first_column(&two.slice(1..2).unwrap().1), [2]);
    let three = (b, &c, b);
    assert_eq!(first_column(&three.slice(3..4).unwrap().2), [6]);
    let four = (b.clone(), &c, (b, b), Parts(vec![b, b]));
    let (x, _, (_, y), mut parts) = four.slice(0..2).unwrap();
    let z = parts.remove(1);
    for part in [x, y, z] {
        assert_eq!(first_column(&part), [0, 2]);
    }

    let list = Parts(vec![tensor(4), tensor(4), tensor(4)]);
    assert_eq!(list.extent().unwrap(), Extent::new(4, 3 * 8));
    assert_eq!(list.slice(0..1).unwrap().len(), 3);

    let map = HashMap::from([("x".to_owned(), tensor(4)), ("y".to_owned(), tensor(4))]);
    assert_eq!(map.extent().unwrap(), Extent::new(4, 2 * 8));
    assert_eq!(first_column(&map.slice(2..4).unwrap()["y"]), [4, 6]);
}

/// `None` has no length of its own and agrees with every other part.
#[test]
fn parts_may_be_absent() {
    let (x, mask) = (tensor(4), Some(tensor(4)));
    let absent = None::<Tensor>;
    assert_eq!((&x, &mask).extent().unwrap(), Extent::new(4, 2 * 8));
    assert_eq!((&absent, &x, &absent).extent().unwrap(), Extent::new(4, 8));
    let (none, cut) = (absent.clone(), &x).slice(1..3).unwrap();
    assert!(none.is_none());
    assert_eq!(first_column(&cut), [2, 4]);
    let (_, cut) = (&x, &mask).slice(1..3).unwrap();
    assert_eq!(first_column(&cut.unwrap()), [2, 4]);
    let list = Parts(vec![absent.clone(), mask.clone()]);
    assert_eq!(list.extent().unwrap().samples, 4);
    // The part is counted among all.
    let error = batch_error(&(&absent, &x, Some(tensor(3))));
    assert!(error.starts_with("part 2 "), "{error}");
    for nothing in [batch_error(&absent), batch_error(&(&absent, &absent))] {
        assert_eq!(nothing, NO_PARTS);
    }
    assert!(mask.device().is_some() && absent.device().is_none());
}

#[test]
fn tuples_have_up_to_8_parts() {
    let x = &tensor(4);
    assert_eq!((x, x, x, x, x).extent().unwrap(), Extent::new(4, 5 * 8));
    assert_eq!((x, x, x, x, x, x).extent().unwrap().samples, 4);
    assert_eq!((x, x, x, x, x, x, x).extent().unwrap().samples, 4);
    let all = (x, x, x, x, x, x, x, Some(x));
    assert_eq!(all.extent().unwrap(), Extent::new(4, 8 * 8));
    let (first, .., last) = all.slice(2..3).unwrap();
    assert_eq!(first_column(&first), [4]);
    assert_eq!(first_column(&last.unwrap()), [4]);
}

#[test]
fn lists_of_samples_are_cut_without_copies() {
    let samples = vec![String::from("a"), String::from("b"), String::from("c")];
    let slice: &[String] = Samples(&samples).slice(1..3).unwrap();
    assert!(std::ptr::eq(slice, &samples[1..3]));
    let mixed = (Samples(&samples), tensor(3));
    let (words, numbers) = mixed.slice(0..2).unwrap();
    assert_eq!((words.len(), numbers.dims()), (2, &[2, 2][..]));
}

#[test]
fn parts_must_agree() {
    assert_eq!(
        batch_error(&(tensor(4), tensor(4), tensor(3))),
        "part 2 of the batch holds 3 samples but the first part holds 4: all parts need the same first dimension"
    );
    let error = batch_error(&Parts(vec![tensor(4), tensor(5)]));
    assert!(error.starts_with("part 1 of the batch holds 5 samples"));
    let map = HashMap::from([("x", tensor(4)), ("y", tensor(5))]);
    assert!(batch_error(&map).starts_with("part 1 of the batch holds"));
}

#[test]
fn what_has_no_samples_says_so() {
    let scalar = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(batch_error(&scalar), SCALAR);
    assert_eq!(batch_error(&(tensor(2), scalar)), SCALAR);
    assert_eq!(batch_error(&Parts::<Tensor>(Vec::new())), NO_PARTS);
    assert_eq!(batch_error(&HashMap::<String, Tensor>::new()), NO_PARTS);
    // 0 is a valid length here. Trainers and processors refuse it.
    assert_eq!(tensor(0).extent().unwrap().samples, 0);
}

#[test]
fn ranges_outside_are_refused() {
    let reversed = std::ops::Range { start: 3, end: 2 };
    for range in [3..5, 5..6, reversed, 0..usize::MAX] {
        for error in [
            tensor(4).slice(range.clone()).unwrap_err(),
            Samples(&[1, 2, 3, 4]).slice(range.clone()).unwrap_err(),
            (tensor(4), tensor(4)).slice(range.clone()).unwrap_err(),
        ] {
            let expected = format!("samples {range:?} are not in a batch of 4");
            assert_eq!(text(&error), expected);
        }
    }
}

use candle_core::{DType, Device, Tensor};
use candle_headroom::Batch;
use candle_headroom::data::Pad;
use proptest::prelude::*;

use super::{documents, tensor, text, zeros};

#[test]
fn tensors_are_padded_along_their_first_dimension() {
    let sound = |frames: usize| Tensor::ones((frames, 2), DType::F32, &Device::Cpu).unwrap();
    let strided = Tensor::ones((2, 3), DType::F32, &Device::Cpu)
        .unwrap()
        .t()
        .unwrap();
    let padded = Pad::new(-1f32)
        .multiple_of(4)
        .tensors(vec![sound(1), sound(0), strided])
        .unwrap();
    assert_eq!(padded.values.dims(), [3, 4, 2]);
    assert_eq!(padded.lengths.to_vec1::<u32>().unwrap(), [1, 0, 3]);
    let sums = padded.values.sum((1, 2)).unwrap().to_vec1::<f32>().unwrap();
    // 2 for each frame, -2 for each that is missing.
    assert_eq!(sums, [-4., -8., 4.]);
    let slice = padded.slice(1..3).unwrap();
    assert_eq!(
        slice.mask(DType::F32).unwrap().to_vec2::<f32>().unwrap(),
        [[0.; 4], [1., 1., 1., 0.]]
    );
    assert!(padded.next_tokens(0).is_err());
}

#[test]
fn sequences_that_cannot_be_padded_are_named() {
    let pad = Pad::new(0f32);
    assert_eq!(
        text(pad.tensors(vec![zeros((3, 4)), zeros((5, 6))])),
        "the sequence at place 1 has shape [5, 6], that at place 0 has [3, 4]: only the first dimension may differ"
    );
    assert_eq!(
        text(pad.tensors(vec![zeros(2), tensor(&[1u32])])),
        "the sequence at place 1 has dtype u32, the value to pad with has f32"
    );
    assert!(text(pad.tensors(vec![zeros(())])).contains("place 0 has shape []"));
    assert!(text(pad.tensors(Vec::new())).contains("there are no sequences"));
    let refused = "sequences of up to 2 cannot be padded to a multiple of 0 and at least 0: from 1 to 4294967295 are allowed";
    assert_eq!(text(pad.multiple_of(0).sequences(vec![[1., 2.]])), refused);
    assert!(
        pad.at_least(usize::MAX)
            .multiple_of(8)
            .sequences(vec![[1.]])
            .is_err()
    );
}

proptest! {
    #[test]
    fn every_value_is_padded_once(
        lengths in prop::collection::vec(0_usize..40, 1..20), multiple in 1_usize..20, shortest in 0_usize..60,
    ) {
        let sources = documents(&lengths);
        let padded = Pad::new(99_999u32).multiple_of(multiple).at_least(shortest).sequences(sources.clone()).unwrap();
        let length = padded.values.dim(1).unwrap();
        let longest = shortest.max(*lengths.iter().max().unwrap());
        prop_assert_eq!(length, longest.div_ceil(multiple) * multiple);
        let mask = padded.mask(DType::U8).unwrap().to_vec2::<u8>().unwrap();
        let next = padded.next_tokens(-1).unwrap().to_vec2::<i64>().unwrap();
        for (row, values) in padded.values.to_vec2::<u32>().unwrap().into_iter().enumerate() {
            let (own, padding) = values.split_at(lengths[row]);
            prop_assert_eq!(own, &sources[row]);
            prop_assert!(padding.iter().all(|value| *value == 99_999));
            prop_assert!(mask[row].iter().enumerate().all(|(at, mask)| (*mask == 1) == (at < own.len())));
            let expected = own.iter().skip(1).map(|token| i64::from(*token)).chain(std::iter::repeat(-1));
            prop_assert_eq!(&next[row], &expected.take(length).collect::<Vec<_>>());
        }
        let tensors = sources.iter().map(|source| Tensor::new(source.as_slice(), &Device::Cpu).unwrap());
        let pad = Pad::new(99_999u32).multiple_of(multiple).at_least(shortest);
        let same = pad.tensors(tensors.collect()).unwrap();
        prop_assert_eq!(same.values.to_vec2::<u32>().unwrap(), padded.values.to_vec2::<u32>().unwrap());
    }
}

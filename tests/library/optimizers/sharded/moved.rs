//! Other shards for an optimizer that has state.

use super::*;

/// An optimizer that has worked alone goes on as ranks, and then with fewer elements each: what is kept stays.
#[test]
fn what_is_kept_stays() {
    let forms: [Options<'_, _>; 3] = [
        &|builder| builder,
        &|builder| builder.moments(Moments::EightBit),
        &|builder| builder.moments(DType::BF16).clip_norm(0.5),
    ];
    for options in forms {
        let mut ranks = ranks(1, DType::F32, &adamw(), options);
        ranks.run(0..5, &unspoiled);
        // Each of the two has all state at first.
        let pieces = cut(&SHAPES, 2, 1024, 256);
        let state = ranks.merged();
        let mut two = Ranks::new(
            &Device::Cpu,
            &SHAPES,
            DType::F32,
            vec![ranks.pieces[0].clone(); 2],
            &adamw(),
            options,
        );
        two.pieces = pieces;
        std::mem::swap(&mut two.whole, &mut ranks.whole);
        for (rank, pieces) in two.ranks.iter_mut().zip(&two.pieces) {
            rank.optimizer.load_state(&state).unwrap();
            let values = two.whole.vars.iter();
            rank.vars
                .iter()
                .zip(values)
                .for_each(|(a, b)| a.set(b).unwrap());
            let bytes = rank.optimizer.state_bytes();
            let shard = rank.shard(pieces);
            rank.optimizer.shard(&shard, None).unwrap();
            assert!(rank.optimizer.state_bytes() < bytes * 2 / 3);
        }
        two.run(5..10, &unspoiled);
        assert_eq!(
            contents(&two.merged()),
            contents(&two.whole.optimizer.state().unwrap())
        );
    }
}

/// Without a rank's state of an element, it is not made up.
#[test]
fn what_another_rank_has_is_not_new() {
    let mut ranks = ranks(2, DType::F32, &adamw(), &plain);
    ranks.run(0..3, &unspoiled);
    let others = ranks.ranks[0].shard(&ranks.pieces[1]);
    let mut more = ranks.pieces[0].clone();
    more.push((0, 512..513));
    let more = ranks.ranks[0].shard(&more);
    let before = contents(&ranks.ranks[0].optimizer.state().unwrap());
    for shard in [others, more] {
        let error = ranks.ranks[0].optimizer.shard(&shard, None).unwrap_err();
        let error = optimizer_error(error);
        assert!(
            error.contains("of parameter `p0` is not on this rank"),
            "{error}"
        );
        assert!(error.contains("StateDict::merge"), "{error}");
    }
    assert_eq!(contents(&ranks.ranks[0].optimizer.state().unwrap()), before);
    ranks.run(3..5, &unspoiled);
}

/// State that does not fit: nothing has changed.
#[test]
fn a_shard_that_fails_changes_nothing() {
    let mut ranks = ranks(2, DType::F32, &adamw(), &plain);
    ranks.run(0..2, &unspoiled);
    let mut wrong = ranks.merged();
    let short = Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap();
    wrong.tensors.insert("p2.exp_avg".into(), short);
    let pieces = cut(&SHAPES, 2, 256, 256);
    let first = &mut ranks.ranks[0];
    let shard = first.shard(&pieces[0]);
    let error = first.optimizer.shard(&shard, Some(&wrong)).unwrap_err();
    assert!(matches!(error, Error::State(_)), "{error}");
    ranks.run(2..4, &unspoiled);
    assert_eq!(
        contents(&ranks.merged()),
        contents(&ranks.whole.optimizer.state().unwrap())
    );
}

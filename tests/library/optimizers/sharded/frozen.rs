//! Groups that are frozen and thawed while ranks share the work.

use super::*;

/// The shard lists all parameters, so each rank drops and makes the state of its pieces.
#[test]
fn listed_groups_come_and_go() {
    for count in 1..=4 {
        let options = |builder: FusedBuilder<ParamsAdamW>| {
            builder.master_weights().moments(Moments::EightBit)
        };
        let mut ranks = ranks(count, DType::BF16, &adamw(), &options);
        let bytes = |ranks: &Ranks<_>| ranks.ranks[0].optimizer.state_bytes();
        let full = bytes(&ranks);
        for (start, frozen) in [(0, true), (5, false), (9, true), (12, false)] {
            for one in ranks.ranks.iter_mut().chain([&mut ranks.whole]) {
                one.set_frozen(2, frozen);
            }
            assert_eq!(bytes(&ranks) < full, frozen);
            ranks.run(start..start + 5, &unspoiled);
            assert_eq!(
                contents(&ranks.merged()),
                contents(&ranks.whole.optimizer.state().unwrap())
            );
        }
    }
}

/// The shard lists what is trained, and all is cut anew after a thaw: the state goes through the whole.
#[test]
fn a_thawed_group_needs_a_new_shard() {
    let options =
        |builder: FusedBuilder<ParamsAdamW>| builder.master_weights().moments(Moments::EightBit);
    let mut ranks = ranks(3, DType::BF16, &adamw(), &options);
    ranks.whole.set_frozen(2, true);
    let trained: Vec<_> = [0, 1, 3, 4].map(|index| (index, SHAPES[index])).into();
    let shapes: Vec<_> = trained.iter().map(|(_, shape)| *shape).collect();
    let mut pieces = cut(&shapes, 3, 768, 256);
    for piece in pieces.iter_mut().flatten() {
        piece.0 = trained[piece.0].0;
    }
    let listed = |one: &ranks::One<_>, pieces: &ranks::Pieces| {
        let mut shard = Shard::of(one.optimizer.parameters());
        let own = |(index, range): &(usize, std::ops::Range<usize>)| {
            shard.own(&one.vars[*index], range.clone());
        };
        pieces.iter().for_each(own);
        shard
    };
    for (rank, pieces) in ranks.ranks.iter_mut().zip(&pieces) {
        rank.set_frozen(2, true);
        let shard = listed(rank, pieces);
        assert!(shard.ranges(&rank.vars[2]).is_none());
        // Elements have moved between ranks, which makes no difference before the first update, but is not known here.
        let error = optimizer_error(rank.optimizer.shard(&shard, None).unwrap_err());
        assert!(error.contains("is not on this rank"), "{error}");
    }
    let state = ranks.merged();
    for (rank, pieces) in ranks.ranks.iter_mut().zip(&pieces) {
        let shard = listed(rank, pieces);
        rank.optimizer.shard(&shard, Some(&state)).unwrap();
    }
    ranks.pieces = pieces;
    ranks.run(0..5, &unspoiled);

    ranks.whole.set_frozen(2, false);
    for rank in &mut ranks.ranks {
        rank.set_frozen(2, false);
        let before = rank.bits();
        let gradients = gradients(&rank.vars, 0);
        let error = optimizer_error(rank.optimizer.commit(&gradients).unwrap_err());
        assert_eq!(error, unlisted("p2"));
        assert_eq!(rank.bits(), before);
    }
    // Nobody has the state of the thawed group, so it is new.
    let state = ranks.merged();
    assert!(state.tensors.contains_key("p2.exp_avg"));
    ranks.pieces = cut(&SHAPES, 3, 512, 256);
    for (rank, pieces) in ranks.ranks.iter_mut().zip(&ranks.pieces) {
        let shard = rank.shard(pieces);
        rank.optimizer.shard(&shard, Some(&state)).unwrap();
    }
    ranks.run(5..10, &unspoiled);
    assert_eq!(
        contents(&ranks.merged()),
        contents(&ranks.whole.optimizer.state().unwrap())
    );
}

use candle_core::DType;
use candle_headroom::Batch;
use candle_headroom::data::{Pack, Packed};
use proptest::prelude::*;

use super::{documents, text};

#[test]
fn documents_that_cannot_be_packed_are_named() {
    assert_eq!(
        text(Pack::new(4).documents(documents(&[3, 5]))),
        "the document at place 1 has 5 tokens, a row has 4: use longer rows, or `Pack::cut`"
    );
    assert_eq!(
        text(Pack::new(4).documents(documents(&[0, 0]))),
        "2 documents without tokens cannot be packed"
    );
    assert_eq!(
        text(Pack::new(0).documents(documents(&[1]))),
        "rows must have from 1 to 4294967295 tokens, got 0"
    );
    assert!(
        Pack::new(usize::MAX)
            .cut()
            .documents(documents(&[1]))
            .is_err()
    );
}

/// Reads all tokens back out of the rows, and checks what is said about each place.
fn unpack(packed: &Packed, ignored: i64, sources: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let tokens = packed.tokens.to_vec2::<u32>().unwrap();
    let positions = packed.positions.to_vec2::<u32>().unwrap();
    let targets = packed.targets.to_vec2::<i64>().unwrap();
    let mut documents: Vec<_> = sources
        .iter()
        .map(|source| vec![None; source.len()])
        .collect();
    let mut starts = Vec::new();
    let mut is_taken: Vec<_> = tokens.iter().map(|row| vec![false; row.len()]).collect();
    for piece in packed.pieces() {
        starts.push((piece.row, piece.start));
        for place in 0..piece.len {
            let (row, at) = (piece.row, piece.start + place);
            assert!(!std::mem::replace(&mut is_taken[row][at], true));
            assert_eq!(positions[row][at] as usize, place);
            let source = &sources[piece.document];
            let next = source.get(piece.offset + place + 1);
            assert_eq!(
                targets[row][at],
                next.map_or(ignored, |next| i64::from(*next))
            );
            let before = documents[piece.document][piece.offset + place].replace(tokens[row][at]);
            assert_eq!(before, None, "twice");
        }
    }
    assert!(starts.is_sorted());
    let rest = is_taken
        .iter()
        .zip(&targets)
        .flat_map(|(taken, targets)| taken.iter().zip(targets));
    assert!(
        rest.filter(|(taken, _)| !**taken)
            .all(|(_, target)| *target == ignored)
    );
    let whole = documents
        .into_iter()
        .map(|document| document.into_iter().collect::<Option<_>>());
    whole
        .collect::<Option<_>>()
        .expect("every token is in a row")
}

proptest! {
    #[test]
    fn every_token_is_packed_once(
        lengths in prop::collection::vec(0_usize..40, 1..30), length in 1_usize..50, cuts: bool, first in 0_usize..30, rows in 0_usize..30,
    ) {
        let sources = documents(&lengths);
        let pack = if cuts { Pack::new(length).cut() } else { Pack::new(length) }.ignore_index(-7).padding(99_999);
        let (total, longest): (usize, _) = (lengths.iter().sum(), lengths.iter().max().unwrap());
        let Ok(packed) = pack.documents(sources.clone()) else {
            prop_assert!(total == 0 || (!cuts && *longest > length));
            return Ok(());
        };
        prop_assert_eq!(&unpack(&packed, -7, &sources), &sources);
        let padding = packed.tokens.eq(99_999u32).unwrap().to_dtype(DType::U32).unwrap();
        let (count, all) = (padding.sum_all().unwrap().to_scalar::<u32>().unwrap() as usize, padding.elem_count());
        prop_assert_eq!(count + total, all);
        // No two rows fit into one.
        let mut filled = vec![0; all / length];
        packed.pieces().iter().for_each(|piece| filled[piece.row] += piece.len);
        filled.sort_unstable();
        prop_assert!(filled.len() < 2 || filled[0] + filled[1] > length);
        let seqlens = packed.seqlens().unwrap().to_vec1::<u32>().unwrap();
        prop_assert_eq!(seqlens.iter().sum::<u32>() as usize, all);
        prop_assert!(!seqlens.contains(&0));

        // A slice of rows is packed too.
        let first = first.min(filled.len());
        let rows = rows.min(filled.len() - first);
        let slice = packed.slice(first..first + rows).unwrap();
        let rest = packed.slice(first + rows..filled.len()).unwrap();
        let before = packed.slice(0..first).unwrap();
        let tokens = slice.tokens.to_vec2::<u32>().unwrap();
        for piece in slice.pieces() {
            let own = &tokens[piece.row][piece.start..piece.start + piece.len];
            prop_assert_eq!(own, &sources[piece.document][piece.offset..piece.offset + piece.len]);
        }
        prop_assert_eq!(slice.pieces().chunk_by(|a, b| a.row == b.row).count(), rows);
        let parts = [before, slice, rest].map(|part| part.seqlens().unwrap().to_vec1::<u32>().unwrap());
        prop_assert_eq!(parts.concat(), seqlens);
    }
}

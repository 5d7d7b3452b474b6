//! Sends one file to the storage: whole, in parts side by side, or piece by piece, whichever the storage and the length want.

use std::pin::pin;

use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::sync::SemaphorePermit;

use super::error::{CheckpointError, Result, transient};
use super::files::Reader;
use super::pending::Making;
use super::progress::{Note, UploadPhase};
use crate::backend::LocalFile;

/// One of the uploads that may run at once.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    _slot: SemaphorePermit<'a>,
    _of_savepoints: Option<SemaphorePermit<'a>>,
}

/// Waits for one. Savepoints leave one to checkpoints: however large or slow they are, those are not to wait for them.
pub(crate) async fn slot(making: &Making) -> Result<Slot<'_>> {
    let turn = async {
        let of_savepoints = match making.folder {
            Some(_) => Some(making.store.savepoint_slots.acquire().await),
            None => None,
        };
        (of_savepoints, making.store.slots.acquire().await)
    };
    let (of_savepoints, slot) = making.unless_discarded(turn).await?;
    let never = "the slots are never closed";
    Ok(Slot { _slot: slot.expect(never), _of_savepoints: of_savepoints.map(|slot| slot.expect(never)) })
}

/// Uploads a file; its checksum.
pub(crate) async fn send(
    making: &Making,
    file: &LocalFile,
    bytes: u64,
    place: &str,
    note: &Note,
    permit: Slot<'_>,
) -> Result<String> {
    let whole = bytes <= making.store.options.part_bytes;
    match &making.store.storage.objects.parts {
        _ if whole => send_whole(making, file, bytes, place, note, permit).await,
        Some(parts) => send_in_parts(making, parts.as_ref(), file, bytes, place, note, permit).await,
        None => {
            // Such an upload cannot try one part again, only all of them.
            let mut tries = 1;
            loop {
                match send_as_stream(making, file, bytes, place, note).await? {
                    Ok(checksum) => return Ok(checksum),
                    Err(error) => again(making, place, note, &mut tries, error).await?,
                }
                note.restart();
            }
        }
    }
}

/// Waits to try again, or gives the error back.
async fn again(
    making: &Making,
    place: &str,
    note: &Note,
    tries: &mut u32,
    error: object_store::Error,
) -> Result<()> {
    let storage = &making.store.storage;
    note.failed(&error);
    if !transient(&error) || *tries >= storage.retry.tries {
        return Err(storage.error("upload", place, *tries, error));
    }
    tracing::debug!(object = place, tries, %error, "an upload failed, trying again");
    making.unless_discarded(tokio::time::sleep(storage.retry.wait(*tries))).await?;
    *tries += 1;
    Ok(())
}

async fn send_whole(
    making: &Making,
    file: &LocalFile,
    bytes: u64,
    place: &str,
    note: &Note,
    _permit: Slot<'_>,
) -> Result<String> {
    note.phase(UploadPhase::Reading);
    let mut reader = Reader::open(&file.path, bytes).await?;
    let data = reader.read(bytes).await?;
    let at = making.store.storage.at(place);
    let mut tries = 1;
    loop {
        pay(making, bytes, note).await?;
        note.phase(UploadPhase::Sending);
        match making.store.storage.objects.objects.put(&at, PutPayload::from_bytes(data.clone())).await {
            Ok(_) => break,
            Err(error) => again(making, place, note, &mut tries, error).await?,
        }
    }
    note.sent(bytes);
    Ok(reader.checksum())
}

/// Waits for the bandwidth limit.
async fn pay(making: &Making, bytes: u64, note: &Note) -> Result<()> {
    if making.store.options.bandwidth.rate() > 0 {
        note.phase(UploadPhase::Limited);
        making.unless_discarded(making.store.options.bandwidth.take(bytes)).await?;
    }
    Ok(())
}

/// Parts side by side, each tried again by itself.
async fn send_in_parts(
    making: &Making,
    parts: &dyn MultipartStore,
    file: &LocalFile,
    bytes: u64,
    place: &str,
    note: &Note,
    permit: Slot<'_>,
) -> Result<String> {
    let storage = &making.store.storage;
    let at = storage.at(place);
    let reader = Reader::open(&file.path, bytes).await?;
    note.phase(UploadPhase::Sending);
    let id = storage.retrying("begin to upload", place, || parts.create_multipart(&at)).await?;

    let sent = pieces(making, parts, &id, reader, place, note, permit).await;
    let sent = match sent {
        Ok((ids, checksum)) => complete(making, parts, place, &id, ids, bytes, note).await.map(|()| checksum),
        Err(error) => Err(error),
    };
    if sent.is_err()
        && let Err(error) = storage.retrying("abort", place, || parts.abort_multipart(&at, &id)).await
    {
        tracing::warn!(object = place, %error, "the parts of an upload that failed could not be removed");
    }
    sent
}

/// All parts of an upload, and the checksum of the whole.
async fn pieces<'a>(
    making: &'a Making,
    parts: &'a dyn MultipartStore,
    id: &'a String,
    mut reader: Reader,
    place: &'a str,
    note: &'a Note,
    permit: Slot<'a>,
) -> Result<(Vec<PartId>, String)> {
    let parallel = making.store.options.parallel.max(1);
    let mut under_way = FuturesUnordered::new();
    let mut ids = Vec::new();
    let mut next = Some(permit);
    let mut index = 0;
    while reader.left > 0 {
        // While this one waits for its turn, those under way go on.
        let permit = loop {
            if let Some(permit) = next.take() {
                break permit;
            }
            let turn = pin!(slot(making));
            match select(turn, under_way.next()).await {
                Either::Left((permit, _)) => break permit?,
                Either::Right((Some(sent), _)) => ids.push(sent?),
                Either::Right((None, turn)) => break turn.await?,
            }
        };
        let data = reader.read(reader.left.min(making.store.options.part_bytes)).await?;
        under_way.push(piece(making, parts, id, (index, data), place, note, permit));
        index += 1;
        while under_way.len() >= parallel {
            ids.extend(under_way.try_next().await?);
        }
    }
    while let Some(sent) = under_way.try_next().await? {
        ids.push(sent);
    }
    ids.sort_unstable_by_key(|(index, _)| *index);
    Ok((ids.into_iter().map(|(_, part)| part).collect(), reader.checksum()))
}

/// One part, tried again by itself.
async fn piece(
    making: &Making,
    parts: &dyn MultipartStore,
    id: &String,
    (index, data): (usize, Bytes),
    place: &str,
    note: &Note,
    permit: Slot<'_>,
) -> Result<(usize, PartId)> {
    let (at, length) = (making.store.storage.at(place), data.len() as u64);
    let mut tries = 1;
    loop {
        pay(making, length, note).await?;
        note.phase(UploadPhase::Sending);
        match parts.put_part(&at, id, index, PutPayload::from_bytes(data.clone())).await {
            Ok(part) => {
                note.sent(length);
                drop(permit);
                return Ok((index, part));
            }
            Err(error) => again(making, place, note, &mut tries, error).await?,
        }
    }
}

/// Makes the parts one object. That may have worked though the answer was lost: then a second call finds no upload any more.
async fn complete(
    making: &Making,
    parts: &dyn MultipartStore,
    place: &str,
    id: &String,
    ids: Vec<PartId>,
    bytes: u64,
    note: &Note,
) -> Result<()> {
    let storage = &making.store.storage;
    let at = storage.at(place);
    let mut tries = 1;
    loop {
        match parts.complete_multipart(&at, id, ids.clone()).await {
            Ok(_) => return Ok(()),
            Err(_) if tries > 1 && storage.length(place).await? == Some(bytes) => return Ok(()),
            Err(error) => again(making, place, note, &mut tries, error).await?,
        }
    }
}

/// Piece after piece; the storage's own error comes back inside.
async fn send_as_stream(
    making: &Making,
    file: &LocalFile,
    bytes: u64,
    place: &str,
    note: &Note,
) -> Result<object_store::Result<String>> {
    let objects: &dyn ObjectStore = making.store.storage.objects.objects.as_ref();
    let mut reader = Reader::open(&file.path, bytes).await?;
    let mut upload = match objects.put_multipart(&making.store.storage.at(place)).await {
        Ok(upload) => upload,
        Err(error) => return Ok(Err(error)),
    };
    let sent = stream_pieces(making, &mut reader, upload.as_mut(), note).await;
    if !matches!(sent, Ok(Ok(())))
        && let Err(error) = upload.abort().await
    {
        tracing::warn!(object = place, %error, "the beginning of an upload that failed could not be removed");
    }
    Ok(sent?.map(|()| reader.checksum()))
}

async fn stream_pieces(
    making: &Making,
    reader: &mut Reader,
    upload: &mut dyn MultipartUpload,
    note: &Note,
) -> Result<object_store::Result<()>> {
    while reader.left > 0 {
        if making.is_discarded() {
            return Err(CheckpointError::Discarded { id: making.id });
        }
        note.phase(UploadPhase::Reading);
        let length = reader.left.min(making.store.options.part_bytes);
        let data = reader.read(length).await?;
        pay(making, length, note).await?;
        note.phase(UploadPhase::Sending);
        if let Err(error) = upload.put_part(PutPayload::from_bytes(data)).await {
            return Ok(Err(error));
        }
        note.sent(length);
    }
    Ok(upload.complete().await.map(drop))
}

/* The requests that exactly-once adds to ../ack_broker.c; target.py inserts this file there: transactions v1,
 * acknowledged and forgotten. No group has ever committed an offset, so every write is planned as the first one. */

static enum outcome answer_done(struct reader *r, bool flexible, struct buffer *out) {
    skip_tags(r, flexible);
    write_int(out, 0, 4); /* throttle time */
    write_int(out, NONE, 2);
    write_no_tags(out, flexible);
    return REPLY;
}

static void read_identity(struct reader *r, bool flexible) {
    read_string(r, flexible); /* transactional id */
    take(r, 8 + 2);           /* producer id and epoch */
}

static enum outcome answer_add_offsets_to_txn(struct reader *r, int version, bool flexible, struct buffer *out) {
    (void)version;
    read_identity(r, flexible);
    read_string(r, flexible); /* group */
    return answer_done(r, flexible, out);
}

static enum outcome answer_end_txn(struct reader *r, int version, bool flexible, struct buffer *out) {
    (void)version;
    read_identity(r, flexible);
    take(r, 1); /* committed */
    return answer_done(r, flexible, out);
}

/* The answers to AddPartitionsToTxn and TxnOffsetCommit: each partition with no error. */
static enum outcome answer_partitions(struct reader *r, bool flexible, struct buffer *out, int rest, bool text_follows) {
    write_int(out, 0, 4); /* throttle time */
    int64_t names = read_count(r, flexible);
    write_count(out, names < 0 ? 0 : names, flexible);
    for (; names > 0 && !r->bad; names--) {
        write_string(out, read_string(r, flexible), flexible);
        int64_t partitions = read_count(r, flexible);
        write_count(out, partitions < 0 ? 0 : partitions, flexible);
        for (; partitions > 0 && !r->bad; partitions--) {
            write_int(out, read_int(r, 4), 4);
            take(r, rest);
            if (text_follows) {
                read_string(r, flexible); /* metadata */
                skip_tags(r, flexible);
            }
            write_int(out, NONE, 2);
            write_no_tags(out, flexible);
        }
        skip_tags(r, flexible);
        write_no_tags(out, flexible);
    }
    skip_tags(r, flexible);
    write_no_tags(out, flexible);
    return REPLY;
}

static enum outcome answer_add_partitions_to_txn(struct reader *r, int version, bool flexible, struct buffer *out) {
    (void)version;
    read_identity(r, flexible);
    return answer_partitions(r, flexible, out, 0, false);
}

static enum outcome answer_txn_offset_commit(struct reader *r, int version, bool flexible, struct buffer *out) {
    read_string(r, flexible); /* transactional id */
    read_string(r, flexible); /* group */
    take(r, 8 + 2);           /* producer id and epoch */
    if (version >= 3) {
        take(r, 4);               /* generation */
        read_string(r, flexible); /* member */
        read_string(r, flexible); /* its instance */
    }
    return answer_partitions(r, flexible, out, version >= 2 ? 8 + 4 : 8, true); /* offset, leader epoch */
}

/* Version 7 alone, the first with require_stable. */
static enum outcome answer_offset_fetch(struct reader *r, int version, bool flexible, struct buffer *out) {
    (void)version;
    read_string(r, flexible); /* group */
    write_int(out, 0, 4);     /* throttle time */
    int64_t names = read_count(r, flexible);
    write_count(out, names < 0 ? 0 : names, flexible);
    for (; names > 0 && !r->bad; names--) {
        write_string(out, read_string(r, flexible), flexible);
        int64_t partitions = read_count(r, flexible);
        write_count(out, partitions < 0 ? 0 : partitions, flexible);
        for (; partitions > 0 && !r->bad; partitions--) {
            write_int(out, read_int(r, 4), 4);
            write_int(out, -1, 8); /* offset: none */
            write_int(out, -1, 4); /* leader epoch */
            write_string(out, text_of(""), flexible);
            write_int(out, NONE, 2);
            write_no_tags(out, flexible);
        }
        skip_tags(r, flexible);
        write_no_tags(out, flexible);
    }
    take(r, 1); /* require_stable */
    skip_tags(r, flexible);
    write_int(out, NONE, 2);
    write_no_tags(out, flexible);
    return REPLY;
}

/* Rows of the table of APIs:
    {9, 7, 7, 6, answer_offset_fetch},
    {24, 0, 3, 3, answer_add_partitions_to_txn},
    {25, 0, 3, 3, answer_add_offsets_to_txn},
    {26, 0, 3, 3, answer_end_txn},
    {28, 0, 3, 3, answer_txn_offset_commit},
*/
